// Package apply is "carillon apply" and "carillon diff": it reads files of tasks, sends them in
// one stream, shows what changed or would, and deletes what the files no longer have if it is
// asked to. What is wrong with a file is told with its place in it, before anything is sent.
package apply
