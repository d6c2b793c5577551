"""Who did what from where: files of JSON lines, and a topic."""
