// Package schedule implements "carillon schedule": it computes the ticks of expressions, explains them, and
// finds mistakes in those of files and tasks.
package schedule
