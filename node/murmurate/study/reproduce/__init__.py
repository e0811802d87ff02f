"""The papers at the scale of a laptop: what they print, what is found here, agreed or not."""
