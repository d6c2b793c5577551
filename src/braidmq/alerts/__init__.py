"""Alerts of dead letters, posted to webhooks."""
