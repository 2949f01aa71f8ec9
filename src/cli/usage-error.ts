import { CodedError } from '../base/index.ts';

/** What was typed makes no sense: exit code 2, and a pointer to `--help`. */
export class UsageError extends CodedError {
  constructor(message: string) {
    super('USAGE', message);
  }
}
