import { Command, Option } from 'commander';
import type { CommonOptions } from './context.ts';
import { type RepositoryFlags, resolveRepository } from './repository/connection.ts';
import { UsageError } from './usage-error.ts';

/** Adds common options. `isNew`: a new repository, never the current connection. */
export function withCommonOptions(command: Command, { isNew = false } = {}): Command {
  return command
    .hook('preAction', async (_, action) => {
      const flags = await resolveRepository(action.opts<RepositoryFlags>(), { isNew });
      for (const [name, value] of Object.entries(flags)) action.setOptionValue(name, value);
    })
    .option(
      '--repo <location>',
      'location of the repository: a path, s3://bucket/prefix/, azblob://container/prefix/ or gs://bucket/prefix/ (docs/storage.md), or @name of a connected one (default: LONGSHORE_REPO, then the one that `repository connect` connected last)',
    )
    .option(
      '--password-file <file>',
      'file that holds the password; a final line end is ignored (default: LONGSHORE_PASSWORD, then as connected, then a prompt)',
    )
    .addOption(
      new Option(
        '--password-command <command>',
        'shell command that prints the password, such as "pass show backup"',
      ).conflicts('passwordFile'),
    )
    .option(
      '--client <user@host>',
      'identity of this client, used for sources and as owner of maintenance (default: OS user and host)',
    )
    .option(
      '--memory-limit <size>',
      'memory that the process may use, such as 512MiB; more memory allows more threads (default: 256MiB, or less if the container has less)',
    )
    .option('--upload-limit <rate>', 'most bytes per second to the storage, such as 50MiB')
    .option('--download-limit <rate>', 'most bytes per second from the storage')
    .option('--requests-limit <n>', 'most requests per second to the storage')
    .option(
      '--stall-timeout <duration>',
      'how long a request may move no byte before it is cut off and tried again (default: 60s)',
    )
    .option(
      '--cache-dir <directory>',
      'directory that caches metadata of remote storage (default: ~/.cache/longshore)',
    )
    .option('--cache-size <size>', 'most disk space for the cache; 0 for no cache (default: 1GiB)')
    .option('--utc', 'show times in UTC instead of the local time zone')
    .option('-q, --quiet', 'print nothing but IDs, tables and errors')
    .option('--verbose', 'log more, and print stack traces with errors')
    .addOption(
      new Option('--log-json', 'print log messages as JSON, one object per line').hideHelp(),
    );
}

export const JSON_OPTION: [string, string] = ['--json', 'print one JSON document on stdout'];

export function verb(
  parent: Command,
  usage: string,
  summary: string,
  example: string,
  { isNew = false } = {},
): Command {
  const command = parent.command(usage).description(summary);
  return withCommonOptions(command, { isNew }).addHelpText('after', `\nExample:\n  $ ${example}`);
}

/** Collects a repeatable `key=value` option. */
export function collectPairs(
  text: string,
  before: Record<string, string> = {},
): Record<string, string> {
  const at = text.indexOf('=');
  if (at < 1) throw new UsageError(`"${text}" is not of the form key=value`);
  return { ...before, [text.slice(0, at)]: text.slice(at + 1) };
}

export type VerbOptions<T = object> = CommonOptions & T;
