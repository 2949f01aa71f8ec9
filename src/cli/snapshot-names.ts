import { isAbsolute, resolve } from 'node:path';
import type { Repository } from '../repository/index.ts';
import { parseSource, type SourceInfo } from '../snapshot/index.ts';

/** How verbs are told which snapshot is meant. */
export const OBJECT_ARGUMENT = '<id>';
export const SOURCE_OPTION = ['--source <user@host:/path>', 'with latest: of this source'] as const;
export const NAMES_HELP = `
An <id> is the ID of a snapshot or its first digits (at least 4), latest, latest~1 for the one before it, or the ID of
an object. With /path behind it, it is what lies there. The latest is the complete snapshot that began last; with
snapshots of several sources, --source says of which: user@host:/path, or a path of this client.`;

export interface NameOptions {
  source?: string;
}

/** Of a path alone: as this client records it. */
export function sourceOf(
  { client }: Repository,
  { source: text }: NameOptions,
): SourceInfo | undefined {
  if (text === undefined) return undefined;
  if (!isAbsolute(text)) return parseSource(text);
  return { host: client.hostname, userName: client.username, path: resolve(text) };
}
