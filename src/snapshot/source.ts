import { CodedError } from '../base/index.ts';

/** The origin of a snapshot. All fields are non-empty. */
export interface SourceInfo {
  readonly host: string;
  readonly userName: string;
  readonly path: string;
}

export const formatSource = ({ userName, host, path }: SourceInfo): string =>
  `${userName}@${host}:${path}`;

/** Parses `user@host:/path`. Throws `BAD_SOURCE`. */
export function parseSource(text: string): SourceInfo {
  const match = /^([^@:]+)@([^:]+):(.+)$/.exec(text);
  const [, userName, host, path] = match ?? [];
  if (userName && host && path) return { userName, host, path };
  throw new CodedError('BAD_SOURCE', `"${text}" is not a source: write user@host:/path`);
}

export const sourceLabels = ({ host, userName, path }: SourceInfo): Record<string, string> => ({
  hostname: host,
  username: userName,
  path,
});
