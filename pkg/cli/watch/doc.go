// Package watch shows a list while it changes: redrawn on a terminal, else a line for each
// change. Events say that something may have changed; what it is now is read again.
package watch
