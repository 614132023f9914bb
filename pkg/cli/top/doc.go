// Package top implements "carillon top". It connects the screen of package internal/top to the server, or
// prints one board if there is no terminal.
package top
