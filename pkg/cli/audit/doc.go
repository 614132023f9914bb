// Package audit implements "carillon audit". It makes the server check its records, shows the findings, and has
// them repaired after confirmation.
//
// Its subcommands log and export show the audit records of who changed what.
package audit
