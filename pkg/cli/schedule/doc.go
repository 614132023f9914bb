// Package schedule is "carillon schedule": try expressions out, explain them, and find mistakes
// in those of files and tasks, without a task being made.
package schedule
