"""How often a diagnosis is wrong: healthy and broken set-ups, and what is said of each."""
