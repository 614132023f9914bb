package view

import (
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// FactText formats a fact for people. It returns "" if the fact is unknown.
func FactText(f *task.Facts, name string) string { return wording.FactText(f, name) }
