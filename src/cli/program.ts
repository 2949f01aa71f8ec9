import { Command, Option } from 'commander';
import type { CommonOptions } from './context.ts';

/** Adds what every verb takes. */
export function withCommonOptions(command: Command): Command {
  return command
    .requiredOption(
      '--repo <location>',
      'where the repository is: a path, s3://bucket/prefix/, azblob://container/prefix/ or gs://bucket/prefix/ (docs/storage.md)',
    )
    .option(
      '--password-file <file>',
      'file that holds the password (else LONGSHORE_PASSWORD, else a prompt)',
    )
    .option(
      '--client <user@host>',
      'who this is: default source and owner of maintenance (default: OS user and host)',
    )
    .option(
      '--memory-limit <size>',
      'what the process may take, such as 192MiB (default: 256MiB, less where a container has less)',
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
    .option('--verbose', 'more messages, and stacks with errors')
    .addOption(new Option('--log-json', 'messages as JSON, one object a line').hideHelp());
}

export const JSON_OPTION: [string, string] = ['--json', 'print one JSON document on stdout'];

export function verb(parent: Command, usage: string, summary: string, example: string): Command {
  const command = parent.command(usage).description(summary);
  return withCommonOptions(command).addHelpText('after', `\nExample:\n  $ ${example}`);
}

/** Collects a repeatable `key=value` option. */
export function collectPairs(
  text: string,
  before: Record<string, string> = {},
): Record<string, string> {
  const at = text.indexOf('=');
  if (at < 1) throw new TypeError(`"${text}" is not of the form key=value`);
  return { ...before, [text.slice(0, at)]: text.slice(at + 1) };
}

/** A duration such as `60s`, `5m`, `2h`, `1d`, in nanoseconds; undefined when it is none. */
export function parseDuration(text: string): bigint | undefined {
  const match = /^(\d+(?:\.\d+)?)(ms|s|m|h|d)$/.exec(text);
  const units: Record<string, number> = { ms: 1e6, s: 1e9, m: 60e9, h: 3600e9, d: 86400e9 };
  if (!match) return undefined;
  return BigInt(Math.round(Number(match[1]) * (units[match[2] ?? ''] ?? 0)));
}

/** A size such as `256MiB`, `1GiB`, `500MB` or a number of bytes; undefined when it is none. */
export function parseBytes(text: string): number | undefined {
  const match = /^(\d+(?:\.\d+)?) ?(?:([KMGT])(i?)B?|B)?$/i.exec(text);
  if (!match) return undefined;
  const [, number, unit = '', binary = ''] = match;
  const power = unit === '' ? 0 : 'KMGT'.indexOf(unit.toUpperCase()) + 1;
  return Math.round(Number(number) * (binary === '' ? 1000 : 1024) ** power);
}

export type VerbOptions<T = object> = CommonOptions & T;
