"""Bytes on streams: messages, links, addresses."""
