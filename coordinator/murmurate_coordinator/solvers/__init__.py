"""Solvers: pure plug-ins behind the coordinator's sessions."""
