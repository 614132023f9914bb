// Package view is how runs, ticks, freezes and facts of nodes look wherever a command shows
// them: the tables and the words that more than one noun has. It changes nothing, and asks the
// server only whether something is frozen.
package view
