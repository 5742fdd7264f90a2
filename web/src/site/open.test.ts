import { expect, test } from 'vitest';
import { jobOf } from './open';

test('a job is named after its files, without the rank of each', () => {
  expect(jobOf(['rank0.pickle', 'rank1.pickle'])).toBe('recording');
  expect(jobOf(['cnn_rank0_cache-rank0.pickle.zst', 'cnn_rank0_cache-rank1.pickle.zst'])).toBe('cnn_rank0_cache');
  expect(jobOf(['gpt2 (ft).pickle.gz'])).toBe('gpt2-ft');
  expect(jobOf(['rank3.pkl'])).toBe('rank3');
  expect(jobOf(['日本.pickle'])).toBe('recording');
  expect(jobOf(['x'.repeat(500)])).toHaveLength(80);
});
