// A tensor that the kernel reads. An element outside it reads as zero.
template <class T> class Read {
  const T *data;
  unsigned long long bytes;
public:
  unsigned long long size() const { return bytes / sizeof(T); }
  T operator[](unsigned long long i) const { return i < size() ? data[i] : T(); }
};
// A tensor that the kernel writes, or reads and writes. What is written outside it is dropped.
template <class T> class Write {
  T *data;
  unsigned long long bytes, reserved;
public:
  unsigned long long size() const { return bytes / sizeof(T); }
  T operator[](unsigned long long i) const { return i < size() ? data[i] : T(); }
  void set(unsigned long long i, T value) const { if (i < size()) data[i] = value; }
  // The address of an element, for atomic operations; null outside the tensor.
  T *at(unsigned long long i) const { return i < size() ? data + i : nullptr; }
};
#define main gradus_main
