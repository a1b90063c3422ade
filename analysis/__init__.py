"""Reading finished, running or killed runs: time-to-accuracy, summaries, plots. Files only."""
