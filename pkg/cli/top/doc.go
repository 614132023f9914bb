// Package top is "carillon top": the screen of package top, connected to the server, or one
// look at it where nobody watches a terminal.
package top
