import { CodedError, systemCode } from '../base/index.ts';

/** A name that would leave its directory is never restored, whatever the snapshot says. */
export function assertPlainName(name: string): void {
  if (name === '' || name === '.' || name === '..' || /[/\0]/.test(name)) {
    throw new CodedError(
      'UNSAFE_NAME',
      `the snapshot holds the unsafe name ${JSON.stringify(name)}`,
    );
  }
}

/** What the system says when something else has the name of a directory, in words. */
export function inTheWay(error: unknown): unknown {
  const code = systemCode(error);
  if (code === 'ENOTDIR' || code === 'ELOOP') {
    const text = 'a file or symbolic link is in the way of a directory';
    return new CodedError('TARGET_IN_THE_WAY', text, { cause: error });
  }
  return error;
}
