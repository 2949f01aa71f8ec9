import { createHash } from 'node:crypto';
import type { KubeObject } from '../../kube/index.ts';

/**
 * On a BackupRepository: what it was connected to, as hashes: of its place and of the password's
 * version, with a dot between.
 */
export const CONNECTED = 'longshore.io/connected-to';

/**
 * As the annotation has it: all that says where a repository is (Velero: needInvalidBackupRepo),
 * and the Secret of the password.
 */
export function connectionOf(location: KubeObject, passwordVersion: string): string {
  const { spec } = location as { spec?: Record<string, unknown> };
  const { bucket, prefix, caCert, caCertRef } = (spec?.objectStorage ?? {}) as Record<
    string,
    unknown
  >;
  const parts = [spec?.provider, spec?.config ?? {}, bucket, prefix, caCert, caCertRef];
  const place = JSON.stringify(parts, (_, value: unknown) =>
    isPlainObject(value)
      ? Object.fromEntries(Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1)))
      : value,
  );
  return `${hashOf(place, 32)}.${hashOf(passwordVersion, 16)}`;
}

/** The place alone, whichever password there is. */
export const placeIn = (connection: string): string =>
  connection.slice(0, connection.lastIndexOf('.'));

export const isReadOnlyLocation = (location: KubeObject): boolean =>
  (location as { spec?: { accessMode?: string } }).spec?.accessMode === 'ReadOnly';

/** What an attempt to connect depends on: a location that may be written to now is another one. */
export const attemptedAt = (connection: string, location: KubeObject): string =>
  `${connection} ${isReadOnlyLocation(location) ? 'read-only' : ''}`;

const hashOf = (text: string, digits: number): string =>
  createHash('sha256').update(text).digest('hex').slice(0, digits);

const isPlainObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);
