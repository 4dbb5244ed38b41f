// Loads an Alertmanager configuration as Alertmanager does, from standard input.
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/prometheus/alertmanager/config"
)

func main() {
	text, err := io.ReadAll(os.Stdin)
	if err == nil {
		_, err = config.Load(string(text))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
