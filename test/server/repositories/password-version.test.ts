import { describe, expect, it } from 'vitest';
import type { KubeObject } from '../../../src/kube/index.ts';
import { passwordVersionOf } from '../../../src/server/repositories/repository-controller.ts';

const secret = (uid: string, resourceVersion: string, password: string): KubeObject =>
  ({
    metadata: { name: 's', uid, resourceVersion },
    data: { 'repository-password': password },
  }) as never;

describe('which password there is', () => {
  it('is told by the Secret, and by nothing that a password could be guessed by', () => {
    expect(passwordVersionOf(secret('u', '7', 'b25l'))).toBe('u/7');
    expect(passwordVersionOf(secret('u', '7', 'dHdv'))).toBe('u/7');
  });
  it('is another one when the Secret was written, or made anew', () => {
    const versions = [
      ['u', '7'],
      ['u', '8'],
      ['v', '7'],
    ].map(([uid = '', version = '']) => passwordVersionOf(secret(uid, version, 'b25l')));
    expect(new Set(versions).size).toBe(3);
  });
});
