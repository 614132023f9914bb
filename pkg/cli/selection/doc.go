// Package selection finds the tasks and runs that the words of a command line name: NAME,
// NAMESPACE/NAME, globs, selectors of labels, TASK@-1, ticks and ids.
//
// Names are checked before anything is sent. A glob that matches nothing is an error, and a
// selection of more than one task that was not named asks before a change. What is not found
// gets a hint at what was probably meant.
package selection
