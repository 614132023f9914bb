// Package batch does the same to many things, some at a time: it tells errors as they come and
// goes on, keeps the order of results, shows progress, and ends with the exit code that all
// failures share. It ends early where the server does not answer or does not let the user in.
package batch
