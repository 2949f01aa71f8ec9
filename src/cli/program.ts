import { Command, Option } from 'commander';
import type { CommonOptions } from './context.ts';
import { type RepositoryFlags, resolveRepository } from './connection.ts';
import { UsageError } from './usage-error.ts';

/** Adds what every verb takes. Whoever makes a repository `isNew` to the user does not mean the connected one. */
export function withCommonOptions(command: Command, { isNew = false } = {}): Command {
  return command
    .hook('preAction', async (_, action) => {
      const flags = await resolveRepository(action.opts<RepositoryFlags>(), { isNew });
      for (const [name, value] of Object.entries(flags)) action.setOptionValue(name, value);
    })
    .option(
      '--repo <location>',
      'where the repository is: a path, s3://bucket/prefix/, azblob://container/prefix/ or gs://bucket/prefix/ (docs/storage.md), or @name of a connected one (else LONGSHORE_REPO, else what `repository connect` connected last)',
    )
    .option(
      '--password-file <file>',
      'file that holds the password, one line end aside (else LONGSHORE_PASSWORD, else as connected, else a prompt)',
    )
    .addOption(
      new Option(
        '--password-command <command>',
        'what /bin/sh runs and prints the password, such as "pass show backup"',
      ).conflicts('passwordFile'),
    )
    .option(
      '--client <user@host>',
      'who this is: default source and owner of maintenance (default: OS user and host)',
    )
    .option(
      '--memory-limit <size>',
      'what the process may take, such as 512MiB; more carries more threads (default: 256MiB, less where a container has less)',
    )
    .option('--upload-limit <rate>', 'bytes per second to the storage, such as 50MiB')
    .option('--download-limit <rate>', 'bytes per second from the storage')
    .option('--requests-limit <n>', 'requests per second to the storage')
    .option(
      '--stall-timeout <duration>',
      'a request that moves no byte for this long is cut and tried again (default: 60s)',
    )
    .option(
      '--cache-dir <directory>',
      'where metadata of remote storages is kept (default: ~/.cache/longshore)',
    )
    .option('--cache-size <size>', 'what the cache may take; 0 for none (default: 1GiB)')
    .option('--utc', 'times for people in UTC instead of the local zone')
    .option('-q, --quiet', 'print IDs, tables and errors, and nothing else')
    .option('--verbose', 'more messages, and stacks with errors')
    .addOption(new Option('--log-json', 'messages as JSON, one object a line').hideHelp());
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
