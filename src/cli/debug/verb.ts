import type { Command } from 'commander';
import { withClusterOptions } from '../cluster-options.ts';
import type { DebugFlags } from './debug.ts';

export function addDebugVerb(program: Command): void {
  withClusterOptions(program.command('debug'))
    .description(
      "collect what a maintainer needs to see of a cluster into one file: Velero's objects, settings, events, logs of its pods; no Secrets",
    )
    .option(
      '--output-file <file>',
      'what is written (default: longshore-debug-<time>.tar.gz in the current directory)',
    )
    .addHelpText(
      'after',
      `
Secrets are never read. Values that look like passwords, keys, tokens or signed URLs are replaced by ***; names of namespaces, volumes, buckets
and nodes stay. Look into it before you give it away: tar -tzf. What may not be read is named on stderr and in bundle/problems.txt.

Examples:
  $ longshore debug
  $ longshore debug -n velero --output-file /tmp/for-the-issue.tar.gz`,
    )
    .action(async (flags: DebugFlags) => {
      const { writeBundle } = await import('./debug.ts');
      await writeBundle(flags);
    });
}
