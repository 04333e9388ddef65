"""Graphs from elsewhere: files, servers and folders of other projects as dataset folders."""
