// Package apply implements "carillon apply" and "carillon diff". It reads files of tasks, sends them in one
// stream, and shows what changed or would change. On request, it deletes tasks that are no longer in the files.
// Errors in files are reported with their positions before anything is sent.
package apply
