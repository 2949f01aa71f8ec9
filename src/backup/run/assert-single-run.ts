import { CodedError } from '../../base/index.ts';

/**
 * Throws the error of `assertLeading`, unless no other server can lead yet. Then this server may
 * still finish urgent steps, such as post hooks.
 */
export function assertSingleRun(assertLeading: (() => void) | undefined): void {
  try {
    assertLeading?.();
  } catch (error) {
    if (!(error instanceof CodedError && error.facts.isVacant === true)) throw error;
  }
}
