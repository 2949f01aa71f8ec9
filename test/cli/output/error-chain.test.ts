import { afterEach, expect, it, vi } from 'vitest';
import { CodedError } from '../../../src/base/index.ts';
import { describeChain } from '../../../src/cli/output/error-chain.ts';
import { runCommandLine } from '../../../src/cli/run.ts';

const URL_WITH_SAS = 'https://a.blob.core.windows.net/c?sv=1&sig=abcSECRETdef%3D&sp=r';
const PAGE = `<html>\n    at the end ${URL_WITH_SAS}\n${'x'.repeat(50_000)}</html>`;

afterEach(() => vi.restoreAllMocks());

it('causes are told in a sentence each, without signatures, and with where they were thrown', () => {
  const page = new Error(`answer of ${URL_WITH_SAS}: ${PAGE}`);
  const cause = new Error(`failed: ${URL_WITH_SAS}`, { cause: page });
  const error = new CodedError('STORAGE_FAILED', `get at ${URL_WITH_SAS} failed`, { cause });
  const lines = describeChain(error);
  const text = lines.join('\n');
  expect(text).not.toContain('SECRET');
  expect(text).toContain('sig=***');
  expect(lines.filter((line) => line.startsWith('caused by: Error: '))).toHaveLength(2);
  expect(lines.filter((line) => /^ +at .*error-chain\.test/.test(line))).toHaveLength(3);
  expect(text.length).toBeLessThan(20_000);
  expect(lines.every((line) => line.length < 400)).toBe(true);
});

it('a chain that leads back to itself ends', () => {
  const error = new Error('first');
  error.cause = new Error('second', { cause: error });
  expect(describeChain(error).filter((line) => line.startsWith('caused by'))).toHaveLength(8);
});

it('what a command fails with is printed so', async () => {
  const written: string[] = [];
  vi.spyOn(process.stderr, 'write').mockImplementation((text) => {
    written.push(String(text));
    return true;
  });
  const location = 'azblob://c/?account=a&endpoint=sig=SECRET';
  expect(await runCommandLine(['snapshot', 'list', '--repo', location, '--verbose'])).toBe(2);
  expect(written.join('')).toContain('***');
  expect(written.join('')).not.toContain('SECRET');
});
