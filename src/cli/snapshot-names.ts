import { isAbsolute, resolve } from 'node:path';
import type { Repository } from '../repository/index.ts';
import { parseSource, type SourceInfo } from '../snapshot/index.ts';

/** How verbs are told which snapshot is meant. */
export const OBJECT_ARGUMENT = '<id>';
export const SOURCE_OPTION = ['--source <user@host:/path>', 'with latest: of this source'] as const;
export const NAMES_HELP = `
An <id> is that of a snapshot or its first digits, latest, latest~1 for the one before it, or an object's;
with /path behind it, what is there. A source is user@host:/path, or a path of this client.`;

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
