// Package factory contains what all commands share. A Factory holds the global flags and the streams of one
// invocation. It creates the client, determines the namespace, asks for confirmations, and reports errors.
//
// A Factory embeds an output.Printer and a settings.Resolver, so a command needs only one parameter. It does
// not depend on any resource; package selection resolves the names of tasks and runs. It connects only when a
// command requests it, asks only on a terminal, and never exits the process.
package factory
