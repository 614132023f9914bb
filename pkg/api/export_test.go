package api

// Warnings is what the status of a cluster warns of.
var Warnings = warnings
