// Command overlay writes a copy of Carillon's source with all mutants, and the file overlay.json for the go command, to a
// directory. It is called in the root of the source.
package main

import (
	"fmt"
	"os"

	"github.com/carillonhq/carillon/pkg/internal/test/mutant"
)

func main() {
	if err := writeOverlay(); err != nil {
		fmt.Fprintln(os.Stderr, "overlay:", err)
		os.Exit(1)
	}
}

func writeOverlay() error {
	if len(os.Args) != 2 {
		return fmt.Errorf("want one argument, the directory")
	}
	if err := os.MkdirAll(os.Args[1], 0o755); err != nil {
		return err
	}

	root, err := os.Getwd()
	if err != nil {
		return err
	}

	return mutant.Overlay(root, os.Args[1])
}
