import { CodedError } from '../../base/index.ts';

/**
 * Throws what `assertLeading` throws, unless nobody else can lead yet: then what must not be left
 * as it is may still be put right.
 */
export function assertAlone(assertLeading: (() => void) | undefined): void {
  try {
    assertLeading?.();
  } catch (error) {
    if (!(error instanceof CodedError && error.facts.isVacant === true)) throw error;
  }
}
