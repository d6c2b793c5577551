"""The words every layer shares: ids, limits, errors, the clock. Imports nothing of ours."""
