import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, expect, it, vi } from 'vitest';
import { environment } from '../../src/config/index.ts';

afterEach(() => {
  vi.unstubAllEnvs();
});

it('a file of credentials that the manifests name and that is not there counts as none', () => {
  const directory = mkdtempSync(join(tmpdir(), 'longshore-environment-'));
  const file = join(directory, 'cloud');
  writeFileSync(file, '');
  vi.stubEnv('AWS_SHARED_CREDENTIALS_FILE', file);
  vi.stubEnv('AZURE_CREDENTIALS_FILE', join(directory, 'missing'));
  vi.stubEnv('GOOGLE_APPLICATION_CREDENTIALS', join(directory, 'missing'));
  expect(environment.forgetMissingCredentials()).toEqual([
    'AZURE_CREDENTIALS_FILE',
    'GOOGLE_APPLICATION_CREDENTIALS',
  ]);
  expect(environment.credentialsFile('s3')).toBe(file);
  expect(environment.credentialsFile('azblob')).toBeUndefined();
  // What libraries read by themselves.
  expect(process.env.GOOGLE_APPLICATION_CREDENTIALS).toBeUndefined();
  rmSync(directory, { recursive: true });
});
