import { isAbsolute, resolve } from 'node:path';
import type { Command } from 'commander';
import type { Repository } from '../../repository/index.ts';
import { parseSource, type SourceInfo } from '../../snapshot/index.ts';

/** How verbs name a snapshot. */
export const OBJECT_ARGUMENT = '<id>';
const SOURCE_OPTION = ['--source <user@host:/path>', 'source that latest refers to'] as const;
const NAMES_HELP = `
An <id> is the ID of a snapshot or its first digits (at least 4), latest, latest~1 for the one before it, or the ID of
an object. With /path behind it, it names the entry at that path. Latest is the complete snapshot that began last; with
snapshots of several sources, --source says which one: user@host:/path, or a path of this client.`;

export interface NameOptions {
  source?: string;
}

/** Adds the options and help of a verb that takes a snapshot. `moreHelp` follows the help. */
export function withNames(command: Command, moreHelp?: string): Command {
  const help = moreHelp === undefined ? NAMES_HELP : `${NAMES_HELP}\n${moreHelp}`;
  return command.option(...SOURCE_OPTION).addHelpText('after', help);
}

/** A path alone means this client's source of that path. */
export function sourceOf(
  { client }: Repository,
  { source: text }: NameOptions,
): SourceInfo | undefined {
  if (text === undefined) return undefined;
  if (!isAbsolute(text)) return parseSource(text);
  return { host: client.hostname, userName: client.username, path: resolve(text) };
}
