// Package task is "carillon task": list, look at, create, change, pause, trigger and delete
// tasks, and next and why, which the program also has without the noun. Applying files of tasks
// is of package apply.
package task
