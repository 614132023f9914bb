// Package batch applies one operation to many objects, several at a time. It prints errors as they occur and
// continues, keeps the order of results, shows progress, and returns the exit code that all failures share. It
// ends early if the server does not answer or rejects the user.
package batch
