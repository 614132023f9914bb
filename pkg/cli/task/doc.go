// Package task implements "carillon task": it lists, shows, creates, changes, pauses, triggers and deletes
// tasks. It also implements next and why, which exist as commands of their own, too, and "carillon run rerun".
// Package apply applies files of tasks.
package task
