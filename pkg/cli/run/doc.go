// Package run implements "carillon run": it lists, shows, cancels, pauses, resumes, retries and dismisses runs.
// Package logs prints their output.
package run
