// Package run is "carillon run": list and look at runs, cancel, pause, resume, retry and dismiss
// them. Their logs are of package logs.
package run
