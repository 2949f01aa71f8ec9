import { createHash } from 'node:crypto';
import type { KubeObject } from '../../kube/index.ts';

/**
 * Annotation on a BackupRepository: `<place hash>.<password version hash>` of its last connection.
 */
export const CONNECTED = 'longshore.io/connected-to';

/**
 * The value of the annotation: hashes of the fields that locate a repository (Velero:
 * needInvalidBackupRepo), and of the password's Secret.
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

/** The hash of the place, without the password. */
export const placeIn = (connection: string): string =>
  connection.slice(0, connection.lastIndexOf('.'));

export const isReadOnlyLocation = (location: KubeObject): boolean =>
  (location as { spec?: { accessMode?: string } }).spec?.accessMode === 'ReadOnly';

/** Key of a connection attempt. A location that becomes writable gets a new attempt. */
export const attemptedAt = (connection: string, location: KubeObject): string =>
  `${connection} ${isReadOnlyLocation(location) ? 'read-only' : ''}`;

const hashOf = (text: string, digits: number): string =>
  createHash('sha256').update(text).digest('hex').slice(0, digits);

const isPlainObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);
