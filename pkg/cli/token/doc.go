// Package token implements "carillon token": create, list and delete API tokens.
//
// The secret of a new token is the only thing that its creation prints on the standard output, so that it can be
// redirected to a file. What people should know about it goes to the standard error.
package token
