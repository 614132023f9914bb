// Package selection finds the tasks and runs that the words of a command line name: NAME, NAMESPACE/NAME,
// globs, label selectors, TASK@-1, ticks and ids.
//
// Names are checked before anything is sent. A glob that matches nothing is an error. A change of several tasks
// that were not all named needs a confirmation. Errors for missing objects suggest what was probably meant.
package selection
