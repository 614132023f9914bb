// Package role implements "carillon role": list, create, update and delete roles, which are named lists of what is allowed.
package role
