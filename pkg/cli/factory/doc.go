// Package factory is what the commands of the command line share: a Factory holds the global
// flags and the streams of one command line while it runs, and from them makes a client, finds
// the namespace, asks for confirmation and reports errors.
//
// A Factory embeds an output.Printer and a settings.Resolver, so that a command has one thing
// to take. It knows no noun: names of tasks and runs are of package selection. It makes no
// connection before a command asks for one, asks only where a person is there to answer, and
// never ends the process.
package factory
